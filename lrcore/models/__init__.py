"""Loading, running and changing Hugging Face networks; higher packages use only this API."""
