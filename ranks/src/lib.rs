//! The host side of training with several processes, called ranks: who they are, how they talk, and how they end together.
//!
//! [`World`] reads what a launcher says in environment variables, [`launch()`] is Kiln's own launcher, and [`Link`] connects
//! the ranks over TCP, in a star around rank 0. The link carries decisions, checks and small data. It also watches: a rank
//! that dies, hangs or fails ends all others, with its name and its reason; or, where a run goes on without the ranks that it loses, the others
//! meet again.
//!
//! The trainer and the command line use this crate. Its interface may change with every version.
//!
//! # The map
//!
//! By layer, lowest first; a module imports only from layers below it:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `devices` names of devices · `limits` how long a rank waits · `members` which ranks train together · [`host_sync`] waits for the device, counted · [`timeline`] when spans were |
//! | 1 | `world` who this process is |
//! | 2 | [`link`] TCP between the ranks |
//! | 3 | `ports` a free port · `ranks` exchanges of gradients and weights |
//! | 4 | [`launch`](mod@launch) Kiln's own launcher |

mod devices;
pub mod host_sync;
pub mod launch;
mod limits;
pub mod link;
mod members;
mod ports;
mod ranks;
pub mod timeline;
mod world;

pub use devices::{DeviceName, DevicesError, MAX_RANKS, parse_devices, share_gpus};
pub use launch::launch;
pub use limits::{Limits, Phase};
pub use link::{Link, LinkError};
pub use ports::free_port;
pub use ranks::Ranks;
pub use world::{Launcher, World, WorldError};
