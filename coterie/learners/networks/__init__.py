"""Large networks in their variants for small images (32x32), with common parts."""
