//! DNS as runs see it: the real gateway library on loopback, an agent that acknowledges records, a small real
//! name server as upstream.

#[cfg(test)]
mod dns {
    mod lookups;
    mod permitted;
    mod records;
    mod rig;
    mod upstream;
}
