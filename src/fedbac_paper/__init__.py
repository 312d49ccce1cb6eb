"""The study of the paper: what to run, what the paper printed, what came out, and which claims hold.

artefacts   a file per table or figure: its runs, its page, its figure and its claims
artefact    what such a file consists of
tasks       the tasks and their names
settings    settings that several tables and figures use; what the paper leaves open, per data set
paper       the numbers that the paper printed
plan        the runs as experiments and folders; what is finished, begun or missing
results     small JSON files with what the runs showed
collect     from run folders to results
measures    numbers of results that claims are about
targets     rounds and bytes to a target accuracy
verdicts    the rules by which a claim holds
claims      what a claim is
tables      numbers in tables, and tables that several pages share
drawing     how figures are drawn
pages       one page a table or figure
overview    all pages in short
command     ``fedbac reproduce``: what it takes
reproducing what it does
"""

ARTEFACT_NAMES = (
    "table-2", "table-2-per-class", "table-fairness", "table-scaling", "table-selection", "capacity",
    "figure-convergence", "figure-dynamics", "communication", "ablation", "beyond", "planted", "noisy",
    "participation", "calibration",
)  # fmt: skip
"""Tables and figures in the order in which the command and the pages list them."""
