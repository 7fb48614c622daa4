"""The theme for light and dark mode. It uses system fonts, so that no font is downloaded."""

import gradio as gr

THEME = gr.themes.Base(
    primary_hue="indigo",
    secondary_hue="slate",
    neutral_hue="slate",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    radius_size="md",
    spacing_size="sm",
    text_size="sm",
).set(
    body_background_fill="*neutral_50",
    body_background_fill_dark="*neutral_950",
    block_background_fill="white",
    block_background_fill_dark="*neutral_900",
    # the default gray of secondary text has a contrast of 2.5 on white; WCAG AA requires 4.5
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_400",
    block_info_text_color="*neutral_600",
    block_info_text_color_dark="*neutral_400",
    block_title_text_color="*neutral_700",
    block_label_text_color="*neutral_700",
    input_placeholder_color="*neutral_500",
    block_border_width="1px",
    block_shadow="none",
    block_shadow_dark="none",
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_hover="*primary_700",
    button_primary_text_color="white",
)
