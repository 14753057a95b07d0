"""How good a result is: accuracy, agreement with the truth, parameter error, certainty, who is worst off."""
