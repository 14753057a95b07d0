"""Evaluation of results: metrics, agreement, certainty, profiles of groups, alternatives and newcomers."""
