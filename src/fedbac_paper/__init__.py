"""The paper's tables and figures: what to run, what the paper printed, what came out, and which claims hold.

settings    one setting per data set for what the paper leaves open
artefacts   which runs each table and figure needs
plan        these runs as experiments and folders; what is finished, begun or missing
results     small JSON files with what the runs showed
verdicts    the rules by which a claim holds
measures    numbers of a result that claims are about
claims      the claims of each table and figure, those of the paper (paper_claims, speed_claims) and
            our own (own_claims)
figures     pictures with the paper's own curves behind ours
cells       how numbers stand in tables
bodies      the tables of each page
pages       one page a table or figure
"""
