from .comparison import Rows as Rows
from .run import benchmark as benchmark
from .suites import OPENOOD as OPENOOD
from .suites import SUITES as SUITES
from .suites import Suite as Suite
from .suites import suite as suite
