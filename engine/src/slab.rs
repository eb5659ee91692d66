//! Things in flight, each at a place that does not move: O(1) to take, to find and to give back; order is repeatable.

pub struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, item: T) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.items[place] = Some(item);
                place
            }
            None => {
                self.items.push(Some(item));
                self.items.len() - 1
            }
        }
    }
    pub fn remove(&mut self, place: usize) -> T {
        let item = self.items[place].take().expect("what is taken out is there");
        self.free.push(place);
        item
    }
    pub fn get(&self, place: usize) -> &T {
        self.items[place].as_ref().expect("what is looked up is there")
    }
    pub fn get_mut(&mut self, place: usize) -> &mut T {
        self.items[place].as_mut().expect("what is looked up is there")
    }
    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.items.iter().enumerate().filter_map(|(place, item)| Some((place, item.as_ref()?)))
    }
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.items.iter_mut().enumerate().filter_map(|(place, item)| Some((place, item.as_mut()?)))
    }
    pub fn bytes(&self) -> u64 {
        (self.items.capacity() * size_of::<Option<T>>()) as u64
    }
}
