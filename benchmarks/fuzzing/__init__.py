"""Inputs of which something is wrong, by the thousand, for whatever reads what others write.

A case is made from its kind, the seed and its number alone, so these three give it again.
"""
