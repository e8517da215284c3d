"""What a person sees of a sweep."""
