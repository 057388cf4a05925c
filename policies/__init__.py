"""The policies that ship with vToken, one file each, registered like anybody else's."""
