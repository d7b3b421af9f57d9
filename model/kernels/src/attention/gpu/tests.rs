use std::sync::OnceLock;

use super::shared::arguments::LensCompilationArg;
pub(super) use super::shared::program::{call, dropout, masks};
use crate::gpu::offline::Compiled;

pub(super) fn lens() -> LensCompilationArg {
    LensCompilationArg { t: (), s: () }
}

/// The kernels that `ptx.lock` records.
pub(crate) fn offline_kernels() -> &'static [Compiled] {
    static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let mut compiled = super::ampere::tests::offline_kernels();
        compiled.extend(super::hopper::tests::offline_kernels());
        compiled
    })
}

#[test]
fn kernels_compile_without_a_device() {
    // Two kernels of the pass multiply nothing.
    let multiplies =
        |label: &str| !["/ampere/", "/one-pass-deltas/", "/one-pass-query-"].iter().any(|part| label.contains(part));
    for Compiled { label, ptx, .. } in offline_kernels().iter().filter(|kernel| multiplies(&kernel.label)) {
        let Some(code) = ptx else { continue };
        let operands = if label.ends_with("-bf16") { "f32.bf16.bf16" } else { "f32.f16.f16" };
        assert!(code.contains(operands), "{label}");
        assert!(code.contains("cp.async.bulk.tensor"), "{label}");
        // A division in full precision is a call, and around a call the driver runs one product at a time.
        assert!(!["div.rn", "div.full", "rcp.rn", "call"].iter().any(|slow| code.contains(slow)), "{label}");
    }
}
