//! Sender selection for broadcast.
