from .fitting import fit as fit
from .processes import Processes as Processes
from .processes import join as join
