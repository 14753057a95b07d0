"""Large networks for images, in the form for small ones (32x32), with the parts they share."""
