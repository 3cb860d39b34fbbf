//! What the scenarios do not say well.
