"""What is known about one upstream: its URLs, models, pace, slots, memory for answers, and faults.

May import batches (output lines), store, config, model and secrets. A new provider's client
belongs here. Start with `pace` and `slots`.
"""
