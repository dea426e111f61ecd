//! Hides values that look like keys, then bounds: in that order, so that no half of a key survives a cut
//! (A28).
