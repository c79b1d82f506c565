from .document import write_report as write_report
from .guards import guard_part as guard_part
from .rows import read_rows as read_rows
from .rows import rows_parts as rows_parts
from .scored import results_part as results_part
