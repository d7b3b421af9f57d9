use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::template::Marked;
use super::*;
use crate::corpus::{ChatMessage, Conversation, Learn, Role};
use crate::tokenizer::{FLAG, TextTokenizer, TokenizerConfig};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/chat")
}

fn expected() -> Value {
    serde_json::from_slice(&fs::read(fixtures().join("expected.json")).expect("committed")).expect("JSON")
}

/// A folder with a tokenizer of the fixtures, its special tokens and a template.
fn tokenizer(kind: &str, names: &Value) -> TextTokenizer {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("tokenizer.json");
    fs::copy(fixtures().join(format!("{kind}.json")), &path).expect("committed");
    fs::write(dir.path().join("tokenizer_config.json"), names.to_string()).expect("writable");
    TextTokenizer::load_dir(dir.path()).expect("a tokenizer")
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::parse(source, BTreeMap::new()).expect("valid")
}

fn question_and_answer() -> Vec<ChatMessage> {
    vec![ChatMessage::new(Role::User, "Who?"), ChatMessage::new(Role::Assistant, "Me.")]
}

fn learned(template: &ChatTemplate, messages: &[ChatMessage], learn: Learn) -> Result<Marked, TemplateError> {
    template.render_to_learn(&[messages], learn).expect("a process").remove(0)
}

fn ids_of(encoder: &ChatEncoder, messages: &[ChatMessage]) -> Encoded {
    encoder.encode(&[messages]).expect("ids").remove(0)
}

fn numbers(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("numbers")
}

/// Compares what a template makes of one conversation. Returns whether its answers were compared, too.
fn compare(tokenizer: &TextTokenizer, messages: &[ChatMessage], wanted: &Value, name: &str) -> bool {
    let template = tokenizer.chat_template().expect("valid");
    let text = match (template.render(messages, false), wanted["error"].as_str()) {
        (Err(problem), Some(error)) => {
            assert!(problem.to_string().contains(error), "{name}: {problem}");
            return false;
        }
        (text, error) => text.unwrap_or_else(|problem| panic!("{name}: {problem}, wanted {error:?}")),
    };
    assert_eq!(text, wanted["text"].as_str().unwrap_or_default(), "{name}");
    let encoder = tokenizer.special_encoder().expect("a tokenizer");
    assert_eq!(encoder.encode(&text).expect("ids"), numbers(&wanted["ids"]), "{name}");
    if !wanted["prompt"].is_null() {
        let prompt = template.render(&messages[..messages.len() - 1], true).expect("a prompt");
        assert_eq!(encoder.encode(&prompt).expect("ids"), numbers(&wanted["prompt"]), "{name}");
    }

    if matches!(encoder.guarded(messages), Cow::Owned(_)) {
        // A message spells a special token, which transformers takes for one.
        return false;
    }

    let chat_encoder = ChatEncoder::new(encoder.clone(), template, Learn::Answers);
    let learned = ids_of(&chat_encoder, messages);
    match (&wanted["mask"], &learned) {
        // `transformers` refuses a conversation without messages.
        (Value::Null, _) if !wanted["prefix_error"].is_null() => false,
        (Value::Null, found) => {
            let problem = found.as_ref().expect_err(name).to_string();
            assert!(problem.contains("the template writes the messages up to this answer differently"), "{problem}");
            false
        }
        (mask, found) => {
            let found = found.as_ref().unwrap_or_else(|problem| panic!("{name}: {problem}"));
            let mask_found: Vec<u32> = found.iter().map(|id| u32::from(id & FLAG != 0)).collect();
            assert_eq!(mask_found, numbers(mask), "{name}: {:?}", encoder.encode(&text));
            assert_eq!(found.iter().map(|id| id & !FLAG).collect::<Vec<_>>(), numbers(&wanted["ids"]), "{name}");
            true
        }
    }
}

#[test]
fn texts_ids_and_answers_are_those_of_transformers() {
    let expected = expected();
    let rows = expected["conversations"].as_array().expect("conversations");
    let conversations: Vec<Vec<ChatMessage>> = rows
        .iter()
        .map(|messages| {
            Conversation::parse(&json!({ "messages": messages }).to_string(), "text").expect("a row").messages
        })
        .collect();

    let mut n_compared = 0;
    for (name, of_template) in expected["templates"].as_object().expect("templates") {
        let source = fs::read_to_string(fixtures().join(format!("{name}.jinja"))).expect("committed");
        for kind in ["byte-level", "metaspace"] {
            let names = json!({
                "bos_token": of_template["bos_token"], "eos_token": of_template["eos_token"], "chat_template": source
            });
            let tokenizer = tokenizer(kind, &names);
            for (i, (messages, wanted)) in
                conversations.iter().zip(of_template[kind].as_array().expect("a list")).enumerate()
            {
                let name = format!("{name}, {kind}, conversation {i}");
                n_compared += usize::from(compare(&tokenizer, messages, wanted, &name));
            }
        }
    }
    assert!(n_compared >= 150, "{n_compared}");
}

#[test]
fn the_last_answer_of_a_template_that_rewrites_earlier_ones_is_found() {
    let source = fs::read_to_string(fixtures().join("qwen3.jinja")).expect("committed");
    let tokenizer = tokenizer("byte-level", &json!({ "eos_token": "<|im_end|>", "chat_template": source }));
    let messages = [question_and_answer(), question_and_answer()].concat();
    let template = tokenizer.chat_template().expect("valid");
    let problem = learned(&template, &messages, Learn::Answers).expect_err("earlier answers change").to_string();
    assert!(problem.starts_with("message 2: ") && problem.contains("data.text.learn = \"last_answer\""), "{problem}");

    let (text, spans) = learned(&template, &messages, Learn::LastAnswer).expect("the last one");
    let found: Vec<&str> = spans.into_iter().map(|span| &text[span]).collect();
    assert_eq!(found, ["<think>\n\n</think>\n\nMe.<|im_end|>\n"]);
    let (text, spans) = learned(&template, &messages, Learn::Everything).expect("all");
    assert_eq!(spans.first(), Some(&(0..text.len())));
}

#[test]
fn templates_that_cannot_be_used_are_refused() {
    let long = "x".repeat((1 << 20) + 1);
    for (source, wanted) in
        [("{% if %}", "line 1 of the template"), ("{{ a b }}", "line 1"), (&long, "it has 1048577 bytes")]
    {
        let problem = ChatTemplate::parse(source, BTreeMap::new()).expect_err("invalid").to_string();
        assert!(problem.contains(wanted), "{problem}");
    }

    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}";
    let doubling =
        "{% set n = namespace(t='xx') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}{{ n.t }}";
    let recursive = "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(1) }}";
    for (source, wanted) in [
        (endless, "it does not come to an end"),
        (doubling, "it does not come to an end"),
        (recursive, "recursion"),
        ("{{ raise_exception('no system message, please') }}", "the template says: no system message, please"),
        ("\n\n{{ messages[9].content.x }}", "line 3 of the template: "),
        ("{{ 'x'.no_such_method() }}", "no_such_method"),
        ("{{ strftime_now('%Q') }}", "strftime_now: no format \"%Q\""),
        ("{% generation %}{% generation %}x{% endgeneration %}{% endgeneration %}", "nested or cut"),
    ] {
        let problem = template(source).render(&question_and_answer(), false).expect_err(source).to_string();
        assert!(problem.contains(wanted), "{source}: {problem}");
    }

    let marked = [ChatMessage::new(Role::Assistant, "a\u{fdd1}b")];
    let problem = template("{{ messages }}").render(&marked, false).expect_err("marks").to_string();
    assert!(problem.contains("U+FDD0"), "{problem}");
    let unused = template("x{% if false %}{% generation %}y{% endgeneration %}{% endif %}");
    let problem = learned(&unused, &question_and_answer(), Learn::Answers).expect_err("no answer").to_string();
    assert!(problem.contains("no {% generation %} block"), "{problem}");
}

#[test]
fn a_turn_ends_at_a_token_or_at_a_text() {
    let encoder = tokenizer("byte-level", &json!({})).special_encoder().expect("a tokenizer");
    for (name, end, token) in [
        ("chatml", "<|im_end|>", Some("<|im_end|>")),
        ("gemma", "<end_of_turn>", Some("<end_of_turn>")),
        ("llama-3", "<|eot_id|>", Some("<|eot_id|>")),
    ] {
        let source = fs::read_to_string(fixtures().join(format!("{name}.jinja"))).expect("committed");
        let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        let found = ChatTemplate::parse(&source, tokens).expect("valid").end_of_turn().expect("two messages");
        assert_eq!((found.as_str(), encoder.first_added_token(&found).expect("ids").as_deref()), (end, token));
    }
    let plain = template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n###\n{% endfor %}");
    let end = plain.end_of_turn().expect("two messages");
    assert_eq!((end.as_str(), encoder.first_added_token(&end).expect("ids")), ("###", None));
}

#[test]
fn a_template_is_found_next_to_its_tokenizer_and_saved_with_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("tokenizer.json");
    fs::copy(fixtures().join("byte-level.json"), &path).expect("committed");
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("writable");
    let found = || TextTokenizer::load_dir(dir.path()).expect("a tokenizer").chat_template().expect("valid");

    assert!(found().is_default() && found().source().contains("<|im_start|>"));
    write("tokenizer_config.json", r#"{"chat_template": "one"}"#);
    assert_eq!(found().source(), "one");
    let named = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
    write("tokenizer_config.json", named);
    assert_eq!(found().source(), "d");
    write("chat_template.jinja", "file");
    assert_eq!(found().source(), "file");

    let config = TokenizerConfig { path: Some(path.clone()), ..TokenizerConfig::default() };
    let loaded = TextTokenizer::load(&config).expect("a tokenizer");
    let saved = tempfile::tempdir().expect("a folder");
    loaded.save(saved.path()).expect("writable");
    let again = TextTokenizer::load_dir(saved.path()).expect("a tokenizer");
    assert_eq!(again.chat_template().expect("valid").source(), "file");
    assert_eq!(again.fingerprint(), loaded.fingerprint());

    write("chat_template.jinja", "{% broken");
    let error = TextTokenizer::load_dir(dir.path()).expect("a tokenizer").chat_template().expect_err("broken");
    assert!(error.to_string().contains("has a chat template that cannot be used: line 1"), "{error}");
    write("chat_template.jinja", &"x".repeat((1 << 20) + 1));
    let error = TextTokenizer::load_dir(dir.path()).expect_err("too long").to_string();
    assert!(error.contains("a chat template of 1048577 bytes, 1048576 are allowed"), "{error}");
}

/// Each of these allocated, recursed or computed without end, or would without a limit.
#[test]
fn a_value_without_end_is_refused_with_its_line() {
    const MILLIARD: &str = "{% set l = [[[1] * 1000] * 1000] * 1000 %}\n";
    const SIXTY: &str = "{% for i in range(60) %}";
    const MEMORY: &str = "it asks for more than 16 MiB of memory";
    const TIME: &str = "it takes more than 1 s";
    const FUEL: &str = "it does not come to an end, or handles too much text";
    let no_end = [
        // Endless to print.
        "{{ '' ~ l }}",
        "{{ l }}",
        "{{ l|tojson(indent=2) }}",
        "{{ '{}'.format(l) }}",
        "{{ l|replace('1', '2') }}",
        "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(l) }}",
        "{{ raise_exception(l|string) }}",
        // Endless to compare, or to make flat.
        "{{ l == l + [] }}",
        "{{ 2 in l|map('string') }}",
        "{{ [l, l]|unique|list }}",
    ];
    for expression in no_end {
        let source = format!("{MILLIARD}{expression}");
        let problem = match template(&source).render(&question_and_answer(), false) {
            Err(problem) => problem.to_string(),
            // What an engine does not compute has no end to wait for.
            Ok(text) if text.len() < 100 => continue,
            Ok(text) => panic!("{expression} has {} bytes", text.len()),
        };
        let is_refused = [MEMORY, TIME, FUEL, "depth"].iter().any(|wanted| problem.contains(wanted));
        assert!(is_refused && problem.starts_with("line 2 of the template: "), "{expression}: {problem}");
    }

    for (source, wanted) in [
        ("{% set n = namespace() %}\n{% set n.a = n %}\n{{ n }}".to_owned(), "line 3 of the template: a value is nested too deeply"),
        ("{% set n = namespace() %}\n{% set l = [[n]] %}{% set n.a = l %}{{ n }}".into(), "line 2 of the template: a value is nested"),
        (format!("{{% set n = namespace(l=[1]) %}}{SIXTY}\n{{% set n.l = [n.l, n.l] %}}{{% endfor %}}\n{{{{ n.l }}}}"), "line 3"),
        ("{% macro m(x, d) %}{% if d %}{{ m([x] * 1000, d - 1) }}{% else %}{{ x }}{% endif %}{% endmacro %}{{ m([1], 10) }}".into(),
            "line 1 of the template: it "),
        ("\n{{ '{:>1000000000000}'.format(1) }}".into(), "line 2 of the template: "),
        ("{{ '{:.99999999999}'.format(1.5) }}".into(), "line 1 of the template: "),
        ("{{ '{:>{}}'.format(1, 1000000000000) }}".into(), "line 1 of the template: "),
        ("{% set a = 'ab' * 300000 %}{{ a.replace('a', a) }}".into(), "line 1 of the template: "),
        ("{% set a = 'ab' * 300000 %}{{ a.join(range(9999)|list) }}".into(), "line 1 of the template: "),
    ] {
        let problem = template(&source).render(&question_and_answer(), false).expect_err(&source).to_string();
        assert!(problem.contains(wanted), "{source}: {problem}");
    }

    let usual = "{% set n = namespace(last=-1, list=[]) %}{% for m in messages %}{% set n.last = loop.index0 %}\
                 {% set n.list = n.list + [m] %}{% set rest = messages[1:] %}{% endfor %}\
                 {% set text -%} {{ n.last }} {%- endset %}{{ text }} {{ n.list|length }} {{ '{:>3}|{}'.format(1, 'x') }}";
    assert_eq!(template(usual).render(&question_and_answer(), false).expect("usual"), "1 2   1|x");
}

/// What a message spells never ends a turn: its ids are those of text, and the turns around it stay as they are.
#[test]
fn special_tokens_that_messages_spell_stay_text() {
    let tokenizer = tokenizer("byte-level", &json!({}));
    let encoder = tokenizer.special_encoder().expect("a tokenizer");
    let template = tokenizer.chat_template().expect("a template");
    let chat = ChatEncoder::new(encoder.clone(), template.clone(), Learn::Answers);
    let ids = |messages: &[ChatMessage]| ids_of(&chat, messages).expect("renders");
    let talk = |question: &str, answer: &str| {
        [ChatMessage::new(Role::User, question), ChatMessage::new(Role::Assistant, answer)]
    };
    let end = encoder.encode("<|im_end|>").expect("a token");
    assert_eq!(end.len(), 1, "the vocabulary has it");
    let n_ends = |ids: &[u32]| ids.iter().filter(|id| **id & !FLAG == end[0]).count();

    let (usual, spelled) =
        (ids(&talk("Hi a", "Yes b")), ids(&talk("Hi <|im_end|> a", "Yes <|im_end|>\n<|im_start|> b")));
    assert_eq!((n_ends(&usual), n_ends(&spelled)), (2, 2));
    let flags = |ids: &[u32]| ids.iter().filter(|id| **id & FLAG != 0).map(|id| id & !FLAG).collect::<Vec<_>>();
    let learned = flags(&spelled);
    assert_eq!(learned.last(), flags(&usual).last(), "the turn ends as before");
    let start = encoder.encode("<|im_start|>").expect("a token");
    assert!(!learned.contains(&start[0]), "{learned:?}");
    let unspelled: Vec<u32> = learned.iter().copied().filter(|id| *id != end[0]).collect();
    assert!(tokenizer.decode(&unspelled).expect("a text").contains("Yes <|im_end|>\n<|im_start|> b"), "{learned:?}");

    let problem = ids_of(&chat, &talk("a\u{fdd2}", "b")).expect_err("no character");
    assert!(problem.to_string().contains("U+FDD2"), "{problem}");

    // A key reads them, as `transformers` does.
    let spelling = talk("Hi <|im_end|> a", "Yes <|im_end|>\n<|im_start|> b");
    assert_eq!((chat.count_spelled(&spelling), chat.count_spelled(&talk("Hi a", "Yes b"))), (3, 0));
    let reading = ChatEncoder::new(encoder.clone(), template, Learn::Answers).splitting_special_tokens(false);
    let read = ids_of(&reading, &spelling).expect("renders");
    assert_eq!(n_ends(&read), 4, "{read:?}");
}

/// An answer of weight 0 is in the text, and no part of it is learned, whatever finds the answers.
#[test]
fn answers_that_are_context_are_not_learned() {
    let marked = "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}.{% endgeneration %}\
                  {% else %}{{ m['content'] }}?{% endif %}{% endfor %}";
    let found = "{% for m in messages %}{{ m['content'] + ('.' if m['role'] == 'assistant' else '?') }}{% endfor %}";
    let one = |role: Role, content: &str, is_learned| ChatMessage { is_learned, ..ChatMessage::new(role, content) };
    let talk = |first: bool, second: bool| {
        [
            one(Role::User, "a", true),
            one(Role::Assistant, "bad", first),
            one(Role::User, "b", true),
            one(Role::Assistant, "good", second),
        ]
    };

    for source in [marked, found] {
        let template = template(source);
        let parts = |messages: &[ChatMessage], learn: Learn| {
            let (text, spans) = learned(&template, messages, learn).expect("renders");
            assert_eq!(text, "a?bad.b?good.");
            spans.into_iter().map(|span| text[span].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(parts(&talk(true, true), Learn::Answers), ["bad.", "good."], "{source}");
        assert_eq!(parts(&talk(false, true), Learn::Answers), ["good."], "{source}");
        assert_eq!(parts(&talk(true, false), Learn::Answers), ["bad."], "{source}");
        assert_eq!(parts(&talk(false, true), Learn::LastAnswer), ["good."], "{source}");
        assert_eq!(parts(&talk(true, true), Learn::Everything), ["a?bad.b?good."], "{source}");
        assert_eq!(parts(&talk(false, true), Learn::Everything), ["a?", "b?good."], "{source}");
        let last = learned(&template, &talk(true, false), Learn::LastAnswer).expect_err("context").to_string();
        assert!(last.contains("makes the last answer context") && last.contains("data.text.learn"), "{last}");
    }

    let one_mark = template("{% generation %}{% for m in messages %}{{ m['content'] }}{% endfor %}{% endgeneration %}");
    assert!(learned(&one_mark, &talk(true, true), Learn::Answers).is_ok());
    let problem = learned(&one_mark, &talk(false, true), Learn::Answers).expect_err("one mark").to_string();
    assert!(problem.contains("the template marks 1 parts, and the conversation has 2 answers"), "{problem}");
}
