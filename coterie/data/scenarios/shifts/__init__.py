"""Differences between clients: corruptions of images, shares of labels, meanings of labels, wrong labels."""
