"""Reading and changing Hugging Face networks. Nothing above this package touches one."""
