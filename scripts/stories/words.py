"""The vocabulary of the stories: plain tuples, so that a new word is one more entry."""


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIRLS = _split_words(
    "Lily Anna Mia Rosa Nora Clara Ella Sara Ruth Ivy Hana Maya Zoe Lucy Emma Grace Tess Wendy "
    "Olga Priya Amina Freya Molly "
    "Daisy Alice Beth Carmen Dina Elsa Flora Gina Holly Iris Jane Kate Leila Mary Nina Pearl Sophie"
)
BOYS = _split_words(
    "Tom Ben Sam Max Leo Jack Omar Finn Hugo Ivan Noah Oscar Peter Raj Theo Will Adam Carl David "
    "Erik Felix George Henry "
    "Isaac Jonas Karim Luke Marco Nick Otto Paul Quinn Ralph Simon Toby Victor Walter Yusuf Zack "
    "Hans"
)
PETS = (
    ("dog", "Biscuit Rex Bruno Patch Scout Barkley"),
    ("cat", "Whiskers Mittens Shadow Misty Pepper Tiger"),
    ("rabbit", "Clover Thumper Snowball Hazel"),
    ("duck", "Waddles Puddle Feather"),
    ("pony", "Star Chestnut Thunder"),
    ("parrot", "Coco Kiwi Mango"),
)
WOMEN = (
    "Grandma",
    "Aunt June",
    "Mrs. Hill",
    "Aunt Vera",
    "Mrs. Baker",
    "Mom",
    "Miss Green",
    "Doctor Lane",
    "Mrs. Popov",
    "Mrs. Stone",
)
MEN = (
    "Grandpa",
    "Uncle Joe",
    "Mr. Hill",
    "Uncle Ravi",
    "Mr. Baker",
    "Dad",
    "Mr. Green",
    "Doctor Wood",
    "Mr. Silva",
    "Mr. Stone",
)

# (name, preposition, outdoors, hiding spots)
PLACES = (
    ("the park", "in", True, ("under the bench", "behind the old oak", "beside the fountain")),
    (
        "the garden",
        "in",
        True,
        ("under the rose bush", "behind the shed", "among the tomato plants"),
    ),
    (
        "the beach",
        "at",
        True,
        ("behind a big rock", "under the striped umbrella", "in a pile of seaweed"),
    ),
    ("the forest", "in", True, ("inside a hollow log", "under the ferns", "behind a tall pine")),
    ("the farm", "on", True, ("behind the barn", "under the hay cart", "next to the pig pen")),
    ("the playground", "at", True, ("under the slide", "behind the swings", "in the sandbox")),
    (
        "the market",
        "at",
        True,
        ("under the fish stall", "behind a stack of baskets", "next to the flower stand"),
    ),
    ("the river", "by", True, ("under the small bridge", "among the reeds", "behind the willow")),
    ("the lake", "by", True, ("under the dock", "inside the rowing boat", "behind the reeds")),
    ("the hill", "on", True, ("under the lone tree", "behind the stone wall", "in the tall grass")),
    (
        "the harbor",
        "at",
        True,
        ("behind the fishing nets", "under an old boat", "next to the lighthouse steps"),
    ),
    (
        "the zoo",
        "at",
        True,
        ("behind the ticket booth", "near the monkey cage", "under the map board"),
    ),
    ("the yard", "in", True, ("under the apple tree", "behind the dog house", "beside the fence")),
    ("the field", "in", True, ("in the long grass", "behind the scarecrow", "under the hedge")),
    ("the kitchen", "in", False, ("under the table", "behind the stove", "on top of the cupboard")),
    ("the bedroom", "in", False, ("under the bed", "behind the curtain", "inside the toy box")),
    (
        "the library",
        "in",
        False,
        ("between two big books", "under the reading chair", "behind the globe"),
    ),
    ("the school", "at", False, ("under the desk", "behind the blackboard", "inside the closet")),
    (
        "the attic",
        "in",
        False,
        ("inside an old trunk", "behind the broken clock", "under a dusty sheet"),
    ),
    ("the barn", "in", False, ("under the straw", "behind the milk cans", "up in the hay loft")),
    (
        "the bakery",
        "in",
        False,
        ("behind the flour sacks", "under the counter", "next to the oven"),
    ),
    (
        "the museum",
        "in",
        False,
        ("behind the stone statue", "under the dinosaur bones", "beside the big door"),
    ),
    (
        "the train station",
        "at",
        False,
        ("under the long bench", "behind the clock", "next to the ticket window"),
    ),
    (
        "the workshop",
        "in",
        False,
        ("under the workbench", "behind the paint cans", "inside the tool chest"),
    ),
    (
        "the living room",
        "in",
        False,
        ("under the sofa", "behind the piano", "next to the fireplace"),
    ),
)

TOYS = _split_words(
    "ball kite doll truck drum puppet robot balloon yo-yo boat train whistle puzzle top bear "
    "scooter trumpet"
)
TREASURES = _split_words(
    "key ring map shell feather stone watch letter book hat scarf lantern bell basket box button "
    "mirror necklace cup"
)
TOOLS = (
    *_split_words("hammer rope ladder shovel needle brush bucket saw"),
    "pot of glue",
    "roll of tape",
)
LOOKS = _split_words(
    "red blue green yellow purple orange white black brown pink golden silver shiny little big "
    "tiny old new wooden striped soft round heavy"
)

# (singular, plural, outdoors, verb of gathering)
COUNTED = (
    ("apple", "apples", True, "picked"), ("pear", "pears", True, "picked"),
    ("plum", "plums", True, "picked"),
    ("flower", "flowers", True, "picked"), ("berry", "berries", True, "gathered"),
    ("nut", "nuts", True, "gathered"),
    ("shell", "shells", True, "found"), ("stone", "stones", True, "collected"),
    ("leaf", "leaves", True, "collected"),
    ("feather", "feathers", True, "found"), ("egg", "eggs", True, "gathered"),
    ("carrot", "carrots", True, "pulled up"),
    ("cookie", "cookies", False, "baked"), ("muffin", "muffins", False, "baked"),
    ("pancake", "pancakes", False, "made"),
    ("button", "buttons", False, "found"), ("pencil", "pencils", False, "found"),
    ("card", "cards", False, "drew"),
    ("paper star", "paper stars", False, "made"), ("candle", "candles", False, "made"),
    ("marble", "marbles", False, "found"),
)  # fmt: skip
NUMBERS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)

# (weather, what it does, what helps, how it ends)
WEATHERS = (
    (
        "It was raining hard",
        "the path was wet and muddy",
        "a pair of rubber boots",
        "the rain stopped and a rainbow came out",
    ),
    (
        "It was very cold",
        "the water had turned to ice",
        "a warm coat",
        "the sun came up and the ice began to melt",
    ),
    (
        "It was snowing",
        "everything was white and quiet",
        "a thick woolen hat",
        "the snow stopped and the stars came out",
    ),
    (
        "The wind was strong",
        "the branches shook and the leaves flew around",
        "a heavy jacket",
        "the wind grew calm",
    ),
    (
        "It was very hot",
        "the grass was dry and everyone was thirsty",
        "a bottle of cold water",
        "a cool breeze came from the hills",
    ),
    (
        "There was thick fog",
        "it was hard to see the road",
        "a bright lantern",
        "the fog lifted and the road was clear again",
    ),
)
TRAITS = _split_words(
    "kind brave shy curious clever careful cheerful quiet honest gentle patient funny stubborn "
    "hard-working"
)
FEELINGS_GOOD = _split_words("happy proud glad excited thankful calm delighted")
FEELINGS_BAD = _split_words("sad worried upset afraid angry lonely tired")

# (skill, what goes wrong, what goes right)
SKILLS = (
    ("ride a bicycle", "fell into the grass", "rode all the way to the gate"),
    ("swim", "swallowed some water", "swam from one side to the other"),
    ("whistle", "only blew air", "whistled a clear tune"),
    ("play the piano", "hit the wrong keys", "played the whole song"),
    ("bake bread", "burned the crust", "took a perfect loaf out of the oven"),
    ("skate", "slipped and sat down hard", "made a big circle without falling"),
    ("tie a knot", "ended up with a tangle", "tied a strong knot"),
    ("draw a horse", "drew something like a table", "drew a horse that seemed to run"),
    ("climb the rope", "slid back down", "touched the top"),
    ("juggle", "dropped everything on the floor", "kept three things in the air"),
    ("paddle a canoe", "went around in circles", "paddled straight across the water"),
    ("read a long word", "got stuck in the middle", "read it aloud without a mistake"),
)
# (strange noise or shape, what it really was)
FRIGHTS = (
    ("a scratching sound", "a small mouse looking for crumbs"),
    ("a tall dark shape", "a coat on a hook"),
    ("two shining eyes", "an owl on a branch"), ("a loud bang", "a window moving in the wind"),
    ("a low growl", "an old dog snoring"), ("a strange whisper", "the leaves rubbing together"),
    ("a tapping noise", "a woodpecker at work"), ("a white ghost", "a sheet on the clothes line"),
    ("a deep rumble", "a truck on the far road"), ("a soft cry", "a hungry kitten"),
)  # fmt: skip
# (animal, its trouble, how it is helped, what it does after)
RESCUES = (
    (
        "a small bird",
        "had fallen out of its nest",
        "carried it carefully back up to the nest",
        "sang a little song",
    ),
    ("a kitten", "was stuck high up in a tree", "climbed up and brought it down", "purred loudly"),
    ("a turtle", "was lying on its back", "turned it over gently", "walked slowly to the water"),
    ("a lamb", "had its leg caught in a fence", "pulled the wires apart", "ran back to its mother"),
    ("a bee", "was trapped behind a window", "opened the window wide", "flew away into the sun"),
    ("a fish", "was caught in an old net", "cut the net open", "swam away with a splash"),
    (
        "a puppy",
        "had lost its way",
        "followed its tracks back to the farm",
        "wagged its tail and barked",
    ),
    (
        "a hedgehog",
        "was too cold to move",
        "wrapped it in a soft towel",
        "woke up and sniffed the air",
    ),
    (
        "a frog",
        "had jumped into a deep bucket",
        "tipped the bucket over",
        "hopped away into the reeds",
    ),
    (
        "a squirrel",
        "had lost all its nuts",
        "brought it a handful of acorns",
        "hid the acorns in a hole",
    ),
)
# (thing that is made, material, way of making)
PROJECTS = (
    (
        "a kite",
        "paper and thin sticks",
        "glued the paper to the sticks",
        "it flew high above the roofs",
    ),
    (
        "a tree house",
        "old boards and nails",
        "hammered the boards together",
        "it stood firm even in the wind",
    ),
    (
        "a snowman",
        "three big balls of snow",
        "put one ball on top of the other",
        "it wore a hat and smiled at everyone",
    ),
    ("a raft", "logs and rope", "tied the logs tightly", "it floated on the water like a duck"),
    (
        "a sand castle",
        "wet sand and shells",
        "built four towers and a wall",
        "it looked like the home of a king",
    ),
    ("a bird house", "wood and green paint", "cut a round door", "a family of birds moved in"),
    (
        "a cake",
        "flour, eggs and honey",
        "mixed everything in a big bowl",
        "it smelled sweet and warm",
    ),
    (
        "a pot of soup",
        "carrots, onions and beans",
        "cut everything into small pieces",
        "it tasted better than any soup before",
    ),
    (
        "a cart",
        "a box and four wheels",
        "fixed the wheels under the box",
        "it rolled down the street with a rattle",
    ),
    (
        "a quilt",
        "pieces of old cloth",
        "sewed the pieces side by side",
        "it was warm and full of colors",
    ),
)
LESSONS = (
    "a true friend shares", "it is good to ask for help", "trying again is better than giving up",
    "a kind word can change a whole day",
    "it is better to tell the truth", "small hands can do great things",
    "being careful saves a lot of trouble",
    "sharing makes everything better",
    "patience always pays", "everyone makes mistakes", "a promise should be kept",
    "working together makes hard things easy",
)  # fmt: skip
