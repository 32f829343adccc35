"""A text that a trained model writes on: python write.py MODEL [TEXT]."""

import sys

import torch
from learner import LETTERS, Network

import shoal

network = shoal.load_model(sys.argv[1], into=Network()).eval()
text = sys.argv[2] if len(sys.argv) > 2 else "Shall "
with torch.no_grad():
    for _ in range(200):
        seen = torch.tensor([[LETTERS.index(letter) for letter in text]])
        text += LETTERS[int(network(seen)[0, -1].argmax())]
print(text)
