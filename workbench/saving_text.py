"""What the page says where something of it is taken elsewhere: a link to the plan."""

COPY_LINK = "Copy link"
LINK_HELP = "Copies the address of this page: it opens with this plan, this slot and this tab."
LINK_COPIED = "Link copied"
LINK_NOT_COPIED = "Not copied: take it from the address bar"
