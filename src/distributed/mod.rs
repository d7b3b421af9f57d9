//! The host side of training with several processes, called ranks: who they are, how they talk, and how they end together.
//!
//! [`World`] reads what a launcher says in environment variables, [`launch()`] is Kiln's own launcher, and [`Link`] connects
//! the ranks over TCP, in a star around rank 0. The link carries decisions, checks and small data. It also watches: a rank
//! that dies, hangs or fails ends all others, with its name and its reason.

mod devices;
pub mod launch;
mod limits;
pub mod link;
mod ports;
mod ranks;
mod world;

pub use devices::{DeviceName, DevicesError, MAX_RANKS, parse_devices, share_gpus};
pub use launch::launch;
pub use limits::{Limits, Phase};
pub use link::{Link, LinkError};
pub use ports::free_port;
pub use ranks::Ranks;
pub use world::{Launcher, World, WorldError};
