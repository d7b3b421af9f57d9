//! Programs: kernels that the driver assembles as a whole.
//!
//! CubeCL assembles a kernel like an object file, to which others could be linked. All threads of such a kernel keep the same number of
//! registers: the assembler ignores `setmaxnreg`, note C7504. A kernel whose warpgroups move registers to each other is compiled, loaded
//! and launched here, by the driver's own functions, on the device's thread and in the order of CubeCL's launches.
//!
//! A program is compiled when it is first launched, or while programs are [`collect`]ed. Its PTX is kept in the folder of [`keep`], so that
//! the next process only loads it.

mod launch;
mod program;

pub(crate) use launch::{Arguments, Boxes};
pub(crate) use program::{await_collected, collect, counts, keep};
#[cfg(test)]
pub(crate) use program::{compile, text_of};
