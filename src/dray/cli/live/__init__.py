"""Views that change while somebody looks at them."""
