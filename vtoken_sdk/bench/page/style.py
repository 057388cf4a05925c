"""The style sheet of the page, for light and dark; the colours are those of Okabe and Ito."""

STYLE = """
:root{--bg:#fff;--fg:#1b1f24;--dim:#5b6470;--line:#dfe3e8;--soft:#f5f7f9;--link:#0a58a8;
--c0:#6b7280;--c1:#d55e00;--c2:#0072b2;--c3:#009e73;--c4:#aa4a8c;--c5:#b8860b;--c6:#2a9bc8;--c7:#444;
--s0:#b6422a;--s1:#e8a26a;--s2:#a9cde4;--s3:#2b78b5;--ok:#0b6b45;--okbg:#dcf3e8;--no:#9c1c1c;
--nobg:#fbe3e1;--un:#5b6470;--unbg:#e9ecf0}
@media(prefers-color-scheme:dark){:root{--bg:#14181d;--fg:#e6e9ed;--dim:#9aa4b0;--line:#2d343d;
--soft:#1b2027;--link:#79b8f2;--c0:#a3acb8;--c1:#f28e3d;--c2:#56b4e9;--c3:#3fc79a;--c4:#d98cc0;
--c5:#e6c34a;--c6:#8fd3f5;--c7:#ccc;--s0:#d5674f;--s1:#e8a26a;--s2:#7fb1d1;--s3:#3f94d6;--ok:#7fe0b3;
--okbg:#143c2b;--no:#ff9d94;--nobg:#4a1d1a;--un:#aab3be;--unbg:#2a313a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
header,main{max-width:60rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.5rem}
h1{font-size:2.1rem;line-height:1.2;margin:0 0 .5rem;letter-spacing:-.02em}
h2{font-size:1.4rem;margin:0 0 .4rem;letter-spacing:-.01em}
h3{font-size:1rem;margin:1.8rem 0 .4rem}
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
nav{display:flex;flex-wrap:wrap;gap:.4rem;margin:1rem 0 0}
nav a{border:1px solid var(--line);border-radius:1rem;padding:.1rem .75rem;font-size:.875rem}
section{margin:2.5rem 0;padding-top:2rem;border-top:1px solid var(--line)}
.about{color:var(--dim);margin:.2rem 0 1rem;max-width:46rem}
.note{color:var(--dim);font-size:.875rem;margin:.2rem 0 .6rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.34rem .7rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--line)}
.figures td{min-width:7rem}.figures td:first-child,.figures td:last-child{min-width:0}
th{font-weight:600;color:var(--dim);vertical-align:bottom}
td:first-child,th:first-child{text-align:left;padding-left:0;white-space:nowrap}
.word{text-align:left}
td:not(:first-child){white-space:nowrap}
tbody tr:hover{background:var(--soft)}
.figures td,.figures th{text-align:left;white-space:normal}
.figures td:first-child{white-space:normal}
.badge{display:inline-block;border-radius:.7rem;padding:0 .6rem;font-size:.8rem;font-weight:600;
white-space:nowrap;margin-right:.3rem;background:var(--unbg);color:var(--un)}
.badge.met{background:var(--okbg);color:var(--ok)}
.badge.missed{background:var(--nobg);color:var(--no)}
.warning{background:var(--nobg);color:var(--no);
padding:.5rem .8rem;border-radius:.4rem;font-weight:600}
figure{margin:1.4rem 0}
figcaption{font-weight:600;margin-bottom:.3rem}
svg{width:100%;max-width:46rem;height:auto;display:block;font-family:inherit}
svg text{fill:var(--fg);font-size:12px}
svg .small{fill:var(--dim);font-size:11px}
svg .middle{text-anchor:middle}svg .end{text-anchor:end}
svg .grid{stroke:var(--line);stroke-width:1}
svg .axis{stroke:var(--dim);stroke-width:1}
svg .ref{stroke:var(--dim);stroke-width:1;stroke-dasharray:2 3}
svg .tick{stroke:var(--fg);stroke-width:2}
svg polyline{fill:none;stroke-width:2;stroke-linejoin:round}
svg .f0{fill:var(--c0)}svg .f1{fill:var(--c1)}svg .f2{fill:var(--c2)}svg .f3{fill:var(--c3)}
svg .f4{fill:var(--c4)}svg .f5{fill:var(--c5)}svg .f6{fill:var(--c6)}svg .f7{fill:var(--c7)}
svg .l0{stroke:var(--c0)}svg .l1{stroke:var(--c1)}svg .l2{stroke:var(--c2)}svg .l3{stroke:var(--c3)}
svg .l4{stroke:var(--c4)}svg .l5{stroke:var(--c5)}svg .l6{stroke:var(--c6)}svg .l7{stroke:var(--c7)}
svg .f10{fill:var(--s0)}svg .f11{fill:var(--s1)}svg .f12{fill:var(--s2)}svg .f13{fill:var(--s3)}
.parts{display:flex;flex-wrap:wrap;gap:0 1.5rem}
.parts>*{flex:1 1 100%;min-width:0}
.parts>.half{flex:1 1 26rem;max-width:29rem}
details{margin:1.2rem 0 0}
summary{cursor:pointer;font-weight:600;color:var(--link)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.8rem;
margin:1.8rem 0 0}
.card{display:flex;flex-direction:column;border:1px solid var(--line);border-radius:.6rem;
padding:.9rem 1rem;background:var(--soft);color:var(--fg)}
.card:hover{border-color:var(--link);text-decoration:none}
.card b{font-size:1.4rem;line-height:1.25;letter-spacing:-.02em;color:var(--c2)}
.card span{font-size:.875rem;line-height:1.4;flex:1}
.card small{color:var(--dim);margin-top:.5rem}
.source{margin-top:1.5rem;font-size:.875rem;color:var(--dim)}
.source p{margin:.3rem 0}
pre{background:var(--soft);border:1px solid var(--line);border-radius:.4rem;padding:.6rem .8rem;
overflow-x:auto;margin:.2rem 0;color:var(--fg);white-space:pre-wrap;overflow-wrap:anywhere}
"""
