"""What a rank records of itself: spans, process counters, and the I/O tracers of `hpcckpt.tracing.io`."""
