"""What `vtoken new-policy` generates."""
