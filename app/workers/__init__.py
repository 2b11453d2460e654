"""All cores of a machine: several processes behind one address, each of which owns some of the channels."""
