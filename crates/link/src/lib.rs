//! Frames, channels and streams: TLPs carried exactly once over a lossy network.
