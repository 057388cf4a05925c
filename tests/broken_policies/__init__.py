"""Policies that are wrong in one way each: the file is named after the one check that must fail."""
