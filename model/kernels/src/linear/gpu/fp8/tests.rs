//! The kernel, compiled without a device.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;

use super::{ScalesCompilationArg, gemm_fp8};
use crate::activation::Activation;
use crate::fp8::Fp8;
use crate::gpu::mma_f32::Arithmetic;
use crate::gpu::offline::{Compiled, buffer, settings};
use crate::linear::Layout;
use crate::linear::gpu::shared::arguments::{
    GemmSizeCompilationArg, OperandsCompilationArg, ResultsCompilationArg, SplitKSizeCompilationArg,
};
use crate::linear::gpu::shared::config::{Epilogue, GemmConfig, Output};

/// Forward with each kind of epilogue, and both gradients.
pub(in crate::linear::gpu) fn offline_kernels() -> Vec<Compiled> {
    let forward = GemmConfig {
        layout: Layout::NT,
        batch: None,
        output: Output::Rounded { bias: false, epilogue: Epilogue::Store },
        tile_n: 256,
        columns: 256,
        half_tiles: false,
        stages: 4,
        panels: 2,
        ragged: false,
        group_m: 16,
        arithmetic: Arithmetic::Eight([Fp8::E4M3; 2]),
    };

    let with = |epilogue| GemmConfig {
        output: Output::Rounded { bias: true, epilogue },
        stages: 3,
        panels: 4,
        ragged: true,
        ..forward
    };
    let gelu = Epilogue::Activation { activation: Activation::GeluTanh, keeps_input: true };
    let gradient = |formats, ragged| GemmConfig {
        tile_n: 128,
        columns: 128,
        ragged,
        arithmetic: Arithmetic::Eight(formats),
        ..forward
    };

    let cases = [
        ("forward", forward),
        ("forward-half-tiles", GemmConfig { half_tiles: true, ..forward }),
        ("forward-bias-residual", with(Epilogue::AddResidual)),
        ("forward-bias-gelu-tanh-kept", with(gelu)),
        ("input-gradient", gradient([Fp8::E5M2, Fp8::E4M3], false)),
        ("weight-gradient", gradient([Fp8::E4M3, Fp8::E5M2], false)),
        ("weight-gradient-ragged", gradient([Fp8::E4M3, Fp8::E5M2], true)),
    ];
    let products = cases.map(|(case, config)| product(case, config));
    products.into_iter().chain(super::round::tests::offline_kernels()).collect()
}

fn product(case: &str, config: GemmConfig) -> Compiled {
    let (launch, properties, target) = settings(config.threads());
    let kernel = gemm_fp8::GemmFp8::new(
        launch,
        properties,
        target,
        OperandsCompilationArg { a: (), b: () },
        ResultsCompilationArg { c: (), auxiliary: () },
        ScalesCompilationArg { a: buffer(), b: buffer() },
        buffer(),
        GemmSizeCompilationArg { m: (), n: (), pitch: (), k_tiles: () },
        SplitKSizeCompilationArg { slices: (), slice_len: (), tail_slices: () },
        config,
        dtype_to_storage_type(DType::BF16),
    );
    Compiled::new(format!("linear/fp8/{case}"), kernel)
}

#[test]
fn kernels_compile_without_a_device() {
    for Compiled { label, ptx, .. } in offline_kernels() {
        let Some(code) = ptx else { return };
        if label.starts_with("linear/fp8/round") {
            continue;
        }
        let formats = match label.as_str() {
            "linear/fp8/input-gradient" => "k32.f32.e5m2.e4m3",
            _ if label.contains("gradient") => "k32.f32.e4m3.e5m2",
            _ => "k32.f32.e4m3.e4m3",
        };
        assert!(code.contains(formats), "{label}");
        assert!(!["div.rn", "rcp.rn", "call"].iter().any(|slow| code.contains(slow)), "{label}");
    }
}
