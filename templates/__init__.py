"""Files that ``vtoken new-policy`` fills in and writes; words between ``@`` signs are filled in."""
