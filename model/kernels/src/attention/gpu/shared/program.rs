//! What the kernels take that are launched as [programs](crate::device_queue::programs).

use std::sync::Arc;

use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use cubecl::prelude::*;

use super::arguments::{CallCompilationArg, DropoutCompilationArg, LensCompilationArg, MasksCompilationArg};
use super::call::{Call, Places};
use crate::device_queue::programs::Arguments;
use crate::dropout::kernel::DropArgsCompilationArg;
use crate::gpu::programs::add_buffer;
use crate::maybe::MaybeInts;

/// Returns the arguments that come first in the constructor of a kernel whose blocks have `threads` threads.
pub(crate) fn settings(
    client: &Client,
    threads: u32,
) -> (KernelSettings, Arc<DeviceProperties>, Arc<TargetProperties>) {
    let settings = KernelSettings::new(*CubeDim::new_1d(threads), ExecutionMode::Unchecked, AddressType::U32);
    (settings, client.properties_shared(), client.target_properties_shared())
}

/// Returns the constructor's argument for a buffer.
pub(crate) fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

/// Returns the constructor's argument for the masks.
pub(crate) fn masks() -> MasksCompilationArg {
    MasksCompilationArg { lengths: buffer(), documents: buffer(), relative: buffer() }
}

/// Returns the constructor's argument for dropout.
pub(crate) fn dropout() -> DropoutCompilationArg {
    DropoutCompilationArg { state: buffer(), args: DropArgsCompilationArg { site: (), limit: (), scale: () } }
}

/// Returns the constructor's argument for a call.
pub(crate) fn call() -> CallCompilationArg {
    let lens = LensCompilationArg { t: (), s: () };
    CallCompilationArg { masks: masks(), heads: (), lens, dropout: dropout(), heads_at_once: (), tile_bits: () }
}

/// Adds what [`super::arguments::Call`] has. The call has no relative positions and no dropout.
pub(crate) fn add_call(arguments: &mut Arguments, call: &Call, places: Places) {
    let mut add_ints = |given: &MaybeInts<CubeBackend>| match given {
        MaybeInts::Some(tensor) => {
            let tensor = into_contiguous(tensor.clone());
            add_buffer(arguments, &tensor, tensor.meta.shape().num_elements());
        }
        MaybeInts::None => add_buffer(arguments, &call.query, 1),
    };
    add_ints(&call.lengths);
    add_ints(&call.documents);
    // Relative positions, and the state of dropout.
    add_ints(&MaybeInts::None);
    add_ints(&MaybeInts::None);

    let [t, s] = call.lens.map(|len| len as u32);
    for number in [places.heads, t, s] {
        arguments.add_number(number);
    }
    // Site, limit and factor of dropout.
    arguments.add_number(0u32);
    arguments.add_number(0u32);
    arguments.add_number(1.0f32);
    for number in [places.heads_at_once, places.tile_bits] {
        arguments.add_number(number);
    }
}
