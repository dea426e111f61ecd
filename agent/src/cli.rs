//! The subcommands of `strait`, one file each.

pub mod doctor;
