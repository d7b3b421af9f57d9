//! Clipping by the norm of all gradients together. Burn's own clips each tensor by its own norm.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use kiln_kernels::optim::{Part, Place, clipping_factor, gather};

/// Scales the gradients of `module` so that their global norm is at most `max_norm`, as `optim.max_grad_norm` does: with the same bits on
/// the CPU. A `max_norm` of 0 leaves them alone.
///
/// With a norm that is not finite, all finite gradients become 0. The trainer skips such a step, which Burn's optimizers cannot.
pub fn clip_gradients<M: Module>(module: &M, gradients: GradientsParams, max_norm: f64) -> GradientsParams {
    if max_norm <= 0.0 {
        return gradients;
    }
    let mut collect = Collect { gradients: &gradients, parts: Vec::new(), places: Vec::new(), n: 0, on: None };
    module.visit(&mut collect);
    let Collect { parts, places, n, on, .. } = collect;
    let Some((dtype, device)) = on else { return gradients };
    let factor = clipping_factor(&gather(parts, &places, n, dtype, &device, None), max_norm);

    let mut scale = Scale { gradients, scaled: GradientsParams::new(), factor };
    module.visit(&mut scale);
    scale.scaled
}

/// Collects the gradients of a module.
struct Collect<'a> {
    gradients: &'a GradientsParams,
    parts: Vec<Part>,
    places: Vec<Place>,
    n: usize,
    on: Option<(DType, Device)>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else { return };
        let len = gradient.shape().num_elements();
        let place = Place { offset: self.n, len };
        self.n += place.padded_len();
        self.on.get_or_insert_with(|| (gradient.dtype(), gradient.device()));
        self.parts.push(gradient.into());
        self.places.push(place);
    }
}

/// Multiplies the gradients of a module.
struct Scale {
    gradients: GradientsParams,
    scaled: GradientsParams,
    /// `[1]`, f32
    factor: Tensor<1>,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else { return };
        let dtype = gradient.dtype();
        let factor = self.factor.clone().reshape([1; D]);
        let scaled = (gradient.cast(DType::F32) * factor).cast(dtype);
        self.scaled.register(param.id, scaled);
    }
}
