//! Where requests come from in the simulated world, and who knows what the replies may be.

pub mod load;
pub mod oracle;
pub mod pages;
pub mod patience;
mod prefix;
