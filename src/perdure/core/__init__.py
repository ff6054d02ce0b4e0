"""The rules: values in, values out. No socket, disk, clock or die is known here."""
