//! The kernel, compiled without a device.

use super::{ResultsCompilationArg, gemm_tf32};
use crate::activation::Activation;
use crate::gpu::offline::{Compiled, buffer, settings};
use crate::linear::Layout;
use crate::linear::gpu::shared::arguments::{GemmSizeCompilationArg, OperandsCompilationArg, SplitKSizeCompilationArg};
use crate::linear::gpu::shared::config::{Epilogue, GemmConfig, Output, Sums};
use crate::linear::gpu::shared::plan::tf32_pays;

pub(in crate::linear::gpu) fn offline_kernels() -> Vec<Compiled> {
    let rounded = |epilogue| Output::Rounded { bias: true, epilogue };
    let gelu = Epilogue::Activation { activation: Activation::GeluTanh, keeps_input: true };
    let cases = [
        ("bias", rounded(Epilogue::Store), 256),
        ("bias-narrow", rounded(Epilogue::Store), 128),
        ("bias-residual", rounded(Epilogue::AddResidual), 256),
        ("bias-gelu-tanh-kept", rounded(gelu), 256),
        ("split-k", Output::Sums(Sums::SplitK), 256),
    ];
    cases.map(|(case, output, tile_n)| product(case, GemmConfig::tf32(Layout::NT, output, tile_n, true))).into()
}

fn product(case: &str, config: GemmConfig) -> Compiled {
    let (launch, properties, target) = settings(config.threads());
    let kernel = gemm_tf32::GemmTf32::new(
        launch,
        properties,
        target,
        OperandsCompilationArg { a: (), b: () },
        ResultsCompilationArg { c: buffer(), auxiliary: buffer(), bias: buffer(), auxiliary_pitch: () },
        GemmSizeCompilationArg { m: (), n: (), pitch: (), k_tiles: () },
        SplitKSizeCompilationArg { slices: (), slice_len: (), tail_slices: () },
        config,
    );
    Compiled::new(format!("linear/tf32/{case}"), kernel)
}

#[test]
fn kernels_compile_without_a_device() {
    for Compiled { label, ptx, .. } in offline_kernels() {
        let code = ptx.expect("no function of libdevice");
        assert!(code.contains("k8.f32.tf32.tf32"), "{label}");
        assert!(code.contains("cp.async.bulk.tensor"), "{label}");
        assert!(!["div.rn", "rcp.rn", "call"].iter().any(|slow| code.contains(slow)), "{label}");
    }
}

#[test]
fn transposes_pay_for_large_products_only() {
    let large = (16_384, 2304, 768);
    assert!([Layout::NN, Layout::NT, Layout::TN].iter().all(|layout| tf32_pays(*layout, large)));
    assert!(!tf32_pays(Layout::NN, (64, 64, 64)) && tf32_pays(Layout::NT, (64, 64, 64)));
    assert!(!tf32_pays(Layout::TN, (128, 128, 16_384)), "two tall matrices");
}
