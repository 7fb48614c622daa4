"""Train a small LLaVA on the built-in questions with images, on the CPU in minutes.

$ python scripts/train_llava.py FOLDER [--steps 8000] [--seed 0]

A Llama with 4 layers, a CLIP tower with 2 layers and the projector are trained together, from
random weights, on the training split of "shapes". The tokenizer is that of demo-llama.
"""

import argparse
import io
import random
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lrcore.data import shapes  # noqa: E402  (needs the path above)

PATCH = 8
BATCH, PEAK, WARMUP = 32, 2e-3, 0.1  # warm-up: fraction of the steps
SPLIT = "train"


def new_model(seed: int) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Return the network with random weights, and its processor."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(ROOT / "assets" / "demo-llama")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    vision = CLIPVisionConfig(
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=shapes.SIZE,
        patch_size=PATCH,
    )
    torch.manual_seed(seed)
    network = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=text,
            vision_feature_layer=-1,
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            tie_word_embeddings=True,
        )
    )
    # Position embeddings start as large as patch embeddings; with the usual 0.02, the model learns
    # to distinguish left and right much later.
    positions = network.model.vision_tower.embeddings.position_embedding
    torch.nn.init.normal_(positions.weight, std=0.3)
    side = {"height": shapes.SIZE, "width": shapes.SIZE}
    image_processor = CLIPImageProcessor(size={"shortest_edge": shapes.SIZE}, crop_size=side)
    processor = LlavaProcessor(
        image_processor,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # CLS
    )
    return network, processor


class Lesson:
    """All questions of the training split as tensors, in batches."""

    def __init__(self, processor: LlavaProcessor) -> None:
        self.rows = [self._row(processor, item) for item in shapes.items(SPLIT)]

    def _row(self, processor: LlavaProcessor, item: dict) -> tuple[list[int], int, torch.Tensor]:
        """Return tokens, the length of the answer, and pixels [n, 3, h, w], n 0 or 1."""
        image, texts = item.get("image"), [item["question"]]
        texts.append(f"{texts[0]} {item['choices'][item['label']]}")
        images = None if image is None else Image.open(io.BytesIO(image)).convert("RGB")
        question, full = (
            processor(text=text, images=images, return_tensors="pt", add_special_tokens=False)
            for text in texts
        )
        ids = full["input_ids"][0].tolist()
        side = shapes.SIZE
        pixels = torch.zeros(0, 3, side, side) if image is None else full["pixel_values"]
        return ids, len(ids) - question["input_ids"].shape[1], pixels

    def batch(self, generator: random.Random) -> dict[str, torch.Tensor]:
        rows = generator.sample(self.rows, BATCH)
        longest = max(len(ids) for ids, _, _ in rows)
        tokens = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _, _ in rows])
        labels = torch.full_like(tokens, -100)
        for row, (ids, answer, _) in enumerate(rows):
            labels[row, len(ids) - answer : len(ids)] = tokens[row, len(ids) - answer : len(ids)]
        pixels = torch.cat([pixels_of_row for _, _, pixels_of_row in rows])
        return {"input_ids": tokens, "labels": labels, "pixel_values": pixels}


def train(network: LlavaForConditionalGeneration, lesson: Lesson, steps: int, seed: int) -> None:
    generator, start = random.Random(seed), time.perf_counter()
    optimizer = torch.optim.AdamW(network.parameters(), lr=PEAK, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, steps, pct_start=WARMUP)
    network.train()
    for step in range(steps):
        loss = network(**lesson.batch(generator), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"{step:5d} {loss.item():.4f} {time.perf_counter() - start:.0f} s", flush=True)
    network.eval()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--steps", type=int, default=8000)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    network, processor = new_model(arguments.seed)
    train(network, Lesson(processor), arguments.steps, arguments.seed)
    network.save_pretrained(arguments.folder)
    processor.save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
