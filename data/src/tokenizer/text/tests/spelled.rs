//! Special tokens that texts spell.

use super::*;

#[test]
fn a_text_never_contains_special_ids() {
    let text = "<s> [CLS] a [MASK] b<|endoftext|></s><|end_of_text|> <pad> [SEP]<mask>";
    for (name, tokenizer) in everything() {
        let TextSpecialIds { pad, bos, eos, cls, sep, mask, .. } = tokenizer.special();
        let ids = tokenizer.encode(text).expect("encodes");
        for special in [pad, bos, eos, cls, sep, mask].into_iter().flatten() {
            assert!(!ids.contains(&special), "{name}: {special} in {ids:?}");
        }
    }
    // A special token without a role is text too, and is read where a person writes a prompt.
    let llama = world("llama3");
    let text = "x<|reserved_special_token_0|>y";
    let ids = llama.encode(text).expect("encodes");
    assert!(!ids.contains(&2) && llama.decode(&ids).expect("decodes") == text, "{ids:?}");
    assert_eq!(llama.encoder().count_spelled(text), 1);
    let mut read = Vec::new();
    llama.encoder().splitting_special_tokens(false).encode(text, &mut read).expect("encodes");
    assert!(read.contains(&2) && llama.encode_prompt(text).expect("encodes").ends_with(&read), "{read:?}");
}
