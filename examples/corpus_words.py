"""Words from which the reading tasks build invented companies, people, rooms and things."""

COMPANY_STARTS = (
    "Alder", "Blue Door", "Copper Hill", "Daisy", "Elm Street", "Falcon", "Golden Key", "Harbour",
    "Iron Gate", "Juniper", "Kestrel", "Little Bridge", "Maple", "North Wind", "Old Mill", "Pebble",
    "Quiet Lake", "Red Barn", "Silver Fox", "Tall Tree", "Upland", "Valley", "White Horse", "Yew",
)
COMPANY_ENDS = (
    "Clocks", "Boats", "Toys", "Bread", "Chairs", "Lamps", "Paper", "Soap", "Shoes", "Bells",
    "Carpets", "Pianos", "Bicycles", "Gardens", "Glass", "Tea", "Books", "Buttons", "Hats",
)
SURNAME_STARTS = (
    "ash", "bar", "bell", "bram", "cal", "clay", "cop", "dal", "dun", "elm", "fair", "fen", "fin",
    "gold", "green", "had", "har", "hol", "ing", "jen", "kel", "lam", "lin", "mar", "mil", "mor",
    "nor", "oak", "pel", "pen", "pick", "quin", "ran", "red", "ros", "sand", "sel", "stan", "tal",
    "thorn", "tip", "tre", "un", "ver", "wal", "wat", "wick", "win", "wool", "yar",
)
SURNAME_ENDS = (
    "by", "combe", "croft", "den", "field", "ford", "gate", "ham", "hurst", "ker", "land", "ley",
    "low", "man", "mer", "more", "ner", "ridge", "sley", "son", "stone", "ton", "ville", "wick",
    "win", "wood", "worth", "s",
)
ROOM_NAMES = (
    "blue", "red", "green", "white", "old", "new", "small", "large", "north", "south", "east",
    "west", "upper", "lower", "front", "back", "main", "quiet", "glass", "stone", "wooden", "round",
    "long", "copper", "iron", "silver", "garden", "harbour", "river", "market", "summer", "winter",
)
ROOM_KINDS = (
    "hall", "room", "office", "shed", "kitchen", "workshop", "attic", "cellar", "tower", "yard",
    "gate", "barn", "library", "store", "corridor", "staircase", "desk", "gatehouse", "garage",
    "courtyard", "pond", "oven", "loft", "hut", "bench", "house", "reception", "studio", "floor",
)
THINGS = (
    "bell", "book", "box", "basket", "lamp", "cup", "hat", "ribbon", "badge", "bottle", "clock",
    "drum", "feather", "flag", "jar", "kettle", "key", "ladder", "map", "mirror", "needle",
    "pencil", "plate", "ring", "rope", "sack", "scarf", "shell", "spoon", "stamp", "stool",
    "ticket", "tin", "token", "trunk", "whistle", "yellow form", "green card", "paper bird",
    "red list", "black board", "pin board", "letter box", "tray", "drawer", "folder", "notebook",
    "sticker", "kite", "cake", "medal", "silver coin", "postcard", "blanket", "candle", "bucket",
    "brush",
)
DISHES = (
    "soup", "fish pie", "rice", "pasta", "pancakes", "bean stew", "salad", "sausages", "potatoes",
    "cheese toast", "apple cake", "vegetable curry", "roast chicken", "omelettes", "porridge",
)
MACHINES = (
    "press", "saw", "lathe", "oven", "loom", "drill", "crane", "pump", "mixer", "cutter", "lift",
    "packing machine", "grinder", "sewing machine", "conveyor belt", "boiler",
)
RULE_ENDS = (
    ", and {person} has the list", ", but not on {day}", ", except in {month}",
    ", as agreed with {person}", " near the {place}", ", and a {thing} is given to everybody",
    ", so please tell {person}", ", before {time} if possible", ", and it costs {money}",
    ", but never in the {place}", ", which {person} writes down", ", and nobody may forget it",
    ", unless the {machine} is running", ", with a {colour} {thing}", ", so use the {thing}",
    ", starting in {month}", ", and {dish} is served", ", within {num} days",
    ", for at most {num} hours", ", when the {thing} hangs on the door", ", every other {day}",
    ", because the {place} is closed then", ", and you hand the {thing} to {person}",
    ", if the weather is good", ", even when it rains", ", first come, first served",
)
