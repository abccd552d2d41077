//! What all of a page shares: its style, and text made safe.

/// Text that may stand in HTML, SVG and their attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() && c != '\n' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// How many colours there are; more series than that repeat them with other patterns.
pub(crate) const COLOURS: usize = 8;

// The colours keep apart for the colour-blind too (Okabe and Ito, "Color Universal Design",
// darkened for white, lightened for black paper).
/// The style sheet.
pub(crate) const STYLE: &str = "\
:root{--ink:#1b1f24;--dim:#5a6470;--paper:#fff;--line:#d5dae0;--soft:#f4f6f8;\
--c0:#0072b2;--c1:#d55e00;--c2:#00805f;--c3:#b04f8f;--c4:#9a7400;--c5:#2f97cf;--c6:#444b55;--c7:#8a3d12}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--dim:#9aa5b1;--paper:#14171b;--line:#39414a;\
--soft:#1d2227;--c0:#56a8e0;--c1:#f08a3c;--c2:#2fc49a;--c3:#dd8cc0;--c4:#e0c04a;--c5:#8fd0f5;\
--c6:#b9c1ca;--c7:#d08a5e}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
p{max-width:44rem}
dl{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0}
dl div{background:var(--soft);border-radius:.4rem;padding:.5rem .8rem}
dt{color:var(--dim);font-size:.82rem}dd{margin:0;font-size:1.1rem;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
th{color:var(--dim);font-weight:600}.r{text-align:right}
figure{margin:1.6rem 0}figcaption{font-weight:600;margin-bottom:.3rem}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font:12px system-ui,sans-serif}
svg .key{fill:var(--ink)}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--dim);stroke-width:1}
.mark{stroke:var(--dim);stroke-width:1;stroke-dasharray:3 3}
.curve{fill:none;stroke-width:2;stroke-linejoin:round}.dash{stroke-dasharray:6 4}.dot{stroke-dasharray:2 3}.wide{stroke-dasharray:12 4}\
.dash.dot{stroke-dasharray:8 3 2 3}.dash.wide{stroke-dasharray:12 3 2 3}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}\
.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}\
.f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}
details{margin:.3rem 0 0}summary{color:var(--dim);font-size:.85rem;cursor:pointer}
@media print{main{max-width:none}figure,table{break-inside:avoid}details{display:none}}
";
