use super::*;

#[test]
fn blocks_become_filters_and_broken_tags_stay_as_they_are() {
    let (replaced, found) = with_filter_blocks("a {%- generation -%} b {% endgeneration %} {% if x %}");
    assert_eq!((&replaced[..], found), ("a {%- filter generation -%} b {% endfilter %} {% if x %}", true));
    for broken in ["{%}", "a {%} b", "a {% if", "{%", "{%%}", "{%}{% if x %}"] {
        assert_eq!(with_filter_blocks(broken), (broken.to_owned(), false));
    }
}
