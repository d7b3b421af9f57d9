//! The gradient of attention: one node, whose state does not grow with T x S.

use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, Backend};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ops::{FlashOps, FlashSpec};
use crate::maybe::{Maybe, MaybeInts};

impl<B: Backend, C: CheckpointStrategy> MaybeInts<Autodiff<B, C>> {
    fn below(self) -> MaybeInts<B> {
        // Integers carry no gradient: they are the same in the inner backend.
        self.into_option().into()
    }
}

#[derive(Debug, Clone)]
struct SelfState<B: Backend> {
    qkv: FloatTensor<B>,
    out: FloatTensor<B>,
    lse: FloatTensor<B>,
    relative: Maybe<B>,
    lengths: MaybeInts<B>,
    documents: MaybeInts<B>,
    random: MaybeInts<B>,
}

/// The parents are `qkv` and `relative`. Without the latter `qkv` takes its place and gets no gradient from it.
#[derive(Debug)]
struct FlashSelf(FlashSpec);

impl<B: Backend + FlashOps> Backward<B, 2> for FlashSelf {
    type State = SelfState<B>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let SelfState { qkv, out, lse, relative, lengths, documents, random } = ops.state;
        let d_out = grads.consume::<B>(&ops.node);
        let [of_qkv, of_relative] = ops.parents;
        let of_relative = of_relative.filter(|_| matches!(relative, Maybe::Some(_)));
        let (d_qkv, d_relative) =
            B::flash_self_backward(qkv, out, lse, d_out, relative, lengths, documents, random, self.0);
        for (node, gradient) in [(of_qkv, d_qkv), (of_relative, d_relative)] {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

#[derive(Debug, Clone)]
struct CrossState<B: Backend> {
    query: FloatTensor<B>,
    key_value: FloatTensor<B>,
    out: FloatTensor<B>,
    lse: FloatTensor<B>,
    lengths: MaybeInts<B>,
    random: MaybeInts<B>,
}

#[derive(Debug)]
struct FlashCross(FlashSpec);

impl<B: Backend + FlashOps> Backward<B, 2> for FlashCross {
    type State = CrossState<B>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let CrossState { query, key_value, out, lse, lengths, random } = ops.state;
        let d_out = grads.consume::<B>(&ops.node);
        let (d_query, d_key_value) =
            B::flash_cross_backward(query, key_value, out, lse, d_out, lengths, random, self.0);
        for (node, gradient) in ops.parents.into_iter().zip([d_query, d_key_value]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: Backend + FlashOps, C: CheckpointStrategy> FlashOps for Autodiff<B, C> {
    fn flash_self(
        qkv: FloatTensor<Self>,
        relative: Maybe<Self>,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (lengths_below, documents_below, random_below) =
            (lengths.clone().below(), documents.clone().below(), random.clone().below());
        let qkv_below = qkv.primitive().clone();
        let relative_below = relative.clone().into_option().map(|it| it.into_primitive()).into();
        let (out, lse) = B::flash_self(qkv_below, relative_below, lengths_below, documents_below, random_below, spec);
        let [out, lse] = [out, lse].map(<Self as AutodiffBackend>::from_inner);
        (Self::known_self(qkv, out, lse.clone(), relative, lengths, documents, random, spec), lse)
    }

    fn known_self(
        qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        relative: Maybe<Self>,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> FloatTensor<Self> {
        let relative = relative.into_option();
        let nodes = [qkv.node(), relative.as_ref().unwrap_or(&qkv).node()];
        let prep = FlashSelf(spec).prepare::<C>(nodes).compute_bound().stateful();
        let [qkv, out, lse] = [qkv, out, lse].map(|tensor| tensor.into_primitive());
        let relative = relative.map(|it| it.into_primitive()).into();
        let (lengths, documents, random) = (lengths.below(), documents.below(), random.below());
        match prep {
            OpsKind::Tracked(prep) => {
                prep.finish(SelfState { qkv, out: out.clone(), lse, relative, lengths, documents, random }, out)
            }
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }

    fn flash_self_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: Maybe<Self>,
        _: MaybeInts<Self>,
        _: MaybeInts<Self>,
        _: MaybeInts<Self>,
        _: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("called by backward only, below the graph")
    }

    fn flash_cross(
        query: FloatTensor<Self>,
        key_value: FloatTensor<Self>,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [query_below, key_value_below] = [&query, &key_value].map(|tensor| tensor.primitive().clone());
        let (lengths_below, random_below) = (lengths.clone().below(), random.clone().below());
        let (out, lse) = B::flash_cross(query_below, key_value_below, lengths_below, random_below, spec);
        let [out, lse] = [out, lse].map(<Self as AutodiffBackend>::from_inner);
        (Self::known_cross(query, key_value, out, lse.clone(), lengths, random, spec), lse)
    }

    fn known_cross(
        query: FloatTensor<Self>,
        key_value: FloatTensor<Self>,
        out: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> FloatTensor<Self> {
        let prep = FlashCross(spec).prepare::<C>([query.node(), key_value.node()]).compute_bound().stateful();
        let [query, key_value, out, lse] = [query, key_value, out, lse].map(|tensor| tensor.into_primitive());
        let (lengths, random) = (lengths.below(), random.below());
        match prep {
            OpsKind::Tracked(prep) => {
                prep.finish(CrossState { query, key_value, out: out.clone(), lse, lengths, random }, out)
            }
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }

    fn flash_cross_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: MaybeInts<Self>,
        _: MaybeInts<Self>,
        _: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("called by backward only, below the graph")
    }
}
