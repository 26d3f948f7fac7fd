"""Recipe `smollm2`: a pretrained model of 135M parameters learns to use a code sandbox, from SFT to RL."""
