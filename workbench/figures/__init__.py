"""Numbers -> figure JSON. Computes nothing about models; one look for light and dark (the page's
colours are put in when drawn).
"""
